"""Remove age and site in scikit-learn: a pipeline and a network, cross-validated, and what is left of age."""

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline

from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier

# 800 people; patients are older, and more of them come from site B.
rng = np.random.default_rng(0)
dx = rng.integers(0, 2, 800)
X = pd.DataFrame(rng.normal(size=(800, 8)), columns=[f"region{place}" for place in range(8)])
X["age"] = rng.normal(60 + 8 * dx, 8)
X["site"] = np.where(rng.random(800) < 0.3 + 0.4 * dx, "B", "A")
X["region0"] += dx
X["region1"] += X["age"] / 8
X["region2"] += 2 * (X["site"] == "B")

# The confounds are columns of X; each model takes them out before it looks at the features.
confounds = ["age", "site"]
options = {"confounds": confounds, "epochs": 30, "lr": 3e-3, "random_state": 0}
models = {
    "residualised logistic regression": make_pipeline(ConfoundResidualizer(confounds, keep="y"), LogisticRegression()),
    "network": DeconfoundedClassifier(layer=None, **options),
    "network with PMDN": DeconfoundedClassifier(**options),
}

# Every fold fits the regression, the design and the network on its own training rows.
for name, model in models.items():
    score = cross_val_predict(model, X, dx, cv=4, method="decision_function")
    within = [abs(np.corrcoef(score[dx == group], X["age"][dx == group])[0, 1]) for group in (0, 1)]
    print(name)
    print("accuracy", ((score > 0) == dx).mean())
    print("correlation with age within a diagnosis", round(float(np.mean(within)), 2))
