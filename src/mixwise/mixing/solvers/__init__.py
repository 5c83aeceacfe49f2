"""Solvers for GME-opt, one per file; they report, `mixwise.mixing.gme` decides."""
