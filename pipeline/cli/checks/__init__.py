"""What ``watchword check`` looks at; one file a subject, each giving findings."""
