"""Rules of subnets: which nodes and regions their policies permit."""
