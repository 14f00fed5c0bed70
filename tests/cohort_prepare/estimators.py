"""Estimators of scikit-learn and LightGBM, and data for each.

The libraries take 2 s of CPU to import: tests import this module when they run.
"""

from __future__ import annotations

from typing import Any

from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

IRIS = load_iris(return_X_y=True)
FLOWERS = (IRIS[0], load_iris().target_names[IRIS[1]])
TUMOURS = load_breast_cancer(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)
PAIR = [("linear", LogisticRegression(max_iter=500)), ("bayes", GaussianNB())]

ESTIMATORS: dict[str, tuple[Any, Any]] = {
    "logistic regression": (LogisticRegression(max_iter=500), FLOWERS),
    "support vectors": (make_pipeline(StandardScaler(), SVC()), TUMOURS),
    "linear support vectors": (LinearSVC(random_state=0), TUMOURS),
    "gradient descent": (SGDClassifier(random_state=0), TUMOURS),
    "forest": (RandomForestClassifier(10, random_state=0), TUMOURS),
    "tree": (DecisionTreeClassifier(random_state=0), TUMOURS),
    "boosting classifier": (HistGradientBoostingClassifier(max_iter=10, random_state=0), IRIS),
    "boosting regressor": (HistGradientBoostingRegressor(max_iter=10, random_state=0), DIABETES),
    "isolation forest": (IsolationForest(n_estimators=10, random_state=0), IRIS),
    "vote": (VotingClassifier(PAIR, voting="soft"), IRIS),
    "ridge": (Ridge(), DIABETES),
    "k-means": (KMeans(3, random_state=0, n_init=1), IRIS),
    "scaler": (StandardScaler(), IRIS),
    "LightGBM classifier": (
        make_pipeline(StandardScaler(), LGBMClassifier(n_estimators=5, verbose=-1)),
        FLOWERS,
    ),
    "LightGBM regressor": (LGBMRegressor(n_estimators=10, verbose=-1), DIABETES),
}
"""An estimator that was not fitted, and the data to fit it to, by their names in the tests."""
