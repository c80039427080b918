"""Every build attempt: what, when, how long, with which result."""
