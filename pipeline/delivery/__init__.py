"""Telling others of events: alert rules, webhooks, MQTT."""
