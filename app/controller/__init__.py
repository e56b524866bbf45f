"""The controllers, pure: the metadata of logs, elections of masters, SyncStateSets, leases."""
