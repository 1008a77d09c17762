"""What the embedded models learn from: free text of Debian packages, and generated tasks with known answers."""
