"""An attacking tenant and a working tenant: measures the attack's effect on the working one."""
