"""What people see: tables, the live line, the HTML page, data frames. Reads records only."""
