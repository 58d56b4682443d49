"""What a run leaves: networks, tables, estimates, files, pages."""
