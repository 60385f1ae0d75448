"""What studies leave behind: the files of a study's folder, and rows of results."""
