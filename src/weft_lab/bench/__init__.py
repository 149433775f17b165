"""Side by side with the peers: one JSON schema, raw samples kept, ratios within one run."""
