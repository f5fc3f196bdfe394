"""What a problem is: a name, options, scales, and the experiment that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks import methods
from benchmarks.experiment import Experiment, Options, View, fill_in
from benchmarks.showing.markdown import CurvesTable


class Problem(NamedTuple):
    """A problem; `commands` has one row for each.

    Attributes:
        name: Its name on the command line.
        settings: The dataclass of its options.
        scales: Scale -> option -> value, or a function from the settings given to the value.
        make_experiment: Settings with every value filled in -> experiment.
        view: How its curves read.
        tables: Name -> table that the READMEs show.
        methods: Name -> row of the method, which has a label.
    """

    name: str
    settings: type[Options]
    scales: Mapping[str, Mapping[str, Any]]
    make_experiment: Callable[[Any], Experiment]
    view: View
    tables: Mapping[str, CurvesTable]
    methods: Mapping[str, Any] = methods.METHODS

    def fill_in(self, settings: Any) -> Any:
        """Returns the settings with what the scale says for every value that was not given.

        Raises:
            ValueError: If a value is impossible.
        """
        return fill_in(settings, self.scales)

    def experiment(self, settings: Any) -> Experiment:
        """Returns the experiment that the settings describe.

        Raises:
            ValueError: If the settings do not fit together.
            RefusedError: If something that it needs is missing.
        """
        return self.make_experiment(self.fill_in(settings))

    @property
    def labels(self) -> dict[str, str]:
        """Method -> what tables and figures call it."""
        return {name: method.label for name, method in self.methods.items()}
