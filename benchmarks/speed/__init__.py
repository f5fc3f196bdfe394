"""What a step with continual backprop or GXD costs, next to the plain optimizer's step."""
