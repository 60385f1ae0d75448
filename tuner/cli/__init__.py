"""The command line: click, every option once, and what commands print."""
