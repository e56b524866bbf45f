"""From a node's folders to replicas that can start, and what their disks may have lost."""
