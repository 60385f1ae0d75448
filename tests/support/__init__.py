"""What several tests share: workloads, files, studies and commands."""
