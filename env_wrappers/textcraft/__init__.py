"""TextCraft: crafting by Minecraft's recipes in text."""
