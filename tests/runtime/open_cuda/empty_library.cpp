// A library in which nothing is: there, and of no use.
