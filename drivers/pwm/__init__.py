"""PWM chips: duties, pulses and servos."""
