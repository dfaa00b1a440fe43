"""What the rows of the Capacity dashboard ask, over the cluster and the one model chosen."""

from __future__ import annotations

C = 'cluster=~"$cluster"'
M = f'{C}, model_name="$model"'
