"""The screen of each command: verdict, columns by priority, what it rests on, what to ask next."""
