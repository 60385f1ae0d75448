"""What a trial trains: the built-in workloads, a package each, and what every workload is."""
