"""Opening of replicas from a node's folders, and detection of what their disks may have lost."""
