"""Local web pages: a game that is being played, and recorded episodes."""
