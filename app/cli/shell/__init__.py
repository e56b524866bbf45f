"""Commands for the user's shell: named clusters (`context`) and completion."""
