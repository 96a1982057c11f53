"""Figures and pages made from runs and from the paper's numbers."""
