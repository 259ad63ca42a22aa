"""The numbers of the rasteriser's formula, which all backends share."""

#: Twice the screen area (square pixels) over which a face turns from back to front, and below which interpolation
#: inside it gives way to its centroid.
FLIP_AREA = 1e-4
#: Coverage below which the mean position inside a face gives way to its centroid: rounding would throw it out of the face.
FAINT = 1e-5
#: A face seen from the front has no horizon: its slope in depth is taken to be at least 1 / 100000 of its size (as a square).
FLAT = 1e-10
#: Back faces are taken to lie as much further as depth changes over this many scales of the noise.
BACK = 2.0
#: Silhouette below which the depth of what is seen fades to 0.
FADE = 1e-4
#: How many steps of exp beyond all depths the nearest unit of coverage may end, and steps that find where.
FURTHEST, SOLVER_STEPS = 60.0, 30
#: Guards the direction of an edge of zero length (square pixels).
EDGE_GUARD = 1e-12
#: Screen positions are kept within this many pixels, so that their fourth powers stay finite in float32.
FAR_PIXELS = 1e7
#: A wide noise leaves nothing fine in a picture, so kernels evaluate it at samples, this many to the noise's scale, and
#: interpolate between them (fewer degrees of freedom reach higher frequencies: see `RasterSettings.spacing`).
SAMPLES_PER_SCALE = 2.25
#: Samples that a pixel is interpolated from, each way, and those beyond the picture's edge on either side.
TAPS, MARGIN = 10, 5
#: Samples closer than this (in pixels), or more than this share of the pixels, are not worth interpolating between.
LEAST_SPACING, MOST_SAMPLES = 1.25, 0.75
#: Points of the world beyond this are taken to lie there, so that products of finite numbers stay finite.
FAR_POINTS = 1e15
#: What a picture may leave out unless told otherwise: a fortieth of an 8-bit picture's step.
EPSILON = 1e-4
#: How much more than that gradients may leave out: see `RasterSettings.near_reach`.
SLOPES_EPSILON = 4.0
#: What a mesh without colours looks like.
GREY = 0.8
