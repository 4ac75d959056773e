"""The commands of python -m shardwise: a file each, whose add_to() adds it to the parser."""
