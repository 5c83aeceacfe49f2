"""Reports: the files of run folders become tables, figures and pages."""
