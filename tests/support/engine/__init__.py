"""The engine behind one interface, as a process or a container: started, ready, ended whole, reaped."""
