"""Learning from the parameters of past tasks: settings, training, selection and reports."""
