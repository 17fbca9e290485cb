"""What a training run did: console lines while it runs, plots and a report afterwards."""
