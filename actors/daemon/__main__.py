"""`python -m hearth.actors.daemon`: hearthd, where its script is not on the path."""

from hearth.actors.daemon import main

main()
