"""Large replies, results and inputs are judged and built in a process beside the loop."""
