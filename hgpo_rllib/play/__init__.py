"""Episodes of scripted experts and people, and pages and text that show episodes."""
