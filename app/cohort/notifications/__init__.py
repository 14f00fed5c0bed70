"""What is told to other programs: webhooks, and how they are signed."""
