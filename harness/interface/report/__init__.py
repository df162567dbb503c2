"""What people see: tables, the live line, the HTML page. Reads records only."""
