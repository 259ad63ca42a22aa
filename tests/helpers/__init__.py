"""What every domain's tests share."""
