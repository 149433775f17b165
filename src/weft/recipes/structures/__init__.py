"""Recipe: a property of molecules or crystals, with SchNet, MPEU or PaiNN."""
