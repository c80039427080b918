"""What a path is: a library, a wheel, a folder, a wheelhouse or an environment, and what is in it."""
