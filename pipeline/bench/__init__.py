"""What measures: chats beside a load against an endpoint or an engine, and what their gaps say. Imported lazily."""
