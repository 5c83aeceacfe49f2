"""Tasks: what is learned."""

from mixwise.protocols import Task
from mixwise.tasks.module import ModuleTask
from mixwise.tasks.quadratic import QuadraticTask, quadratics, random_quadratics, two_class_quadratics

__all__ = ["ModuleTask", "QuadraticTask", "Task", "quadratics", "random_quadratics", "two_class_quadratics"]
