"""The paper's figures, one module each, with their plots and reports."""
