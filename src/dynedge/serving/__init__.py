"""A trained run as a service: events in, recommendations out."""
