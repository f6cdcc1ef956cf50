"""The command line: parse, load, call a calculator, hand rows to the report."""
