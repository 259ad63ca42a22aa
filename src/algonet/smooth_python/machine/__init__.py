"""What carries programs out: values, the recorder, its instructions, and runs that are repeated."""
