"""Reports: what runs leave behind becomes tables and figures."""
