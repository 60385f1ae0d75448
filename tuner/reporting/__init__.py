"""What people look at: text and pages made from results."""
