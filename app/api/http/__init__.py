"""What all routes share: messages, dependencies, limits, tokens, problem documents."""
