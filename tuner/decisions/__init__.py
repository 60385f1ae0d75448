"""What happens in a study, its state, and the policies that decide what follows."""
