"""What every step of one request drafted, verified and accepted: for people who look into acceptance."""
